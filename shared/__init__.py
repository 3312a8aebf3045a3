"""What controller, worker and clients have in common. Imports neither controller nor worker."""
