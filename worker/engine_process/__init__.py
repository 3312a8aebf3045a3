"""Engine processes from the agent's side: started, monitored, restarted."""
