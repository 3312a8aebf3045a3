"""Where clients' messages enter the leader: decoded, validated, handed to the request machine."""
