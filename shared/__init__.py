"""Code shared by controller, worker and clients. Imports neither controller nor worker."""
