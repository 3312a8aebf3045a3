"""Which models a worker has, where their files are, and how they come and go."""
