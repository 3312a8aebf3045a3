"""Transfer of model files between workers, so that the hub sends each file once."""
