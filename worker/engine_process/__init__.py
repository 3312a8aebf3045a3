"""Engine processes as the agent sees them: started, watched, restarted."""
