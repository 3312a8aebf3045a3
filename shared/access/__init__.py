"""Who may take part in a cluster, and what each may say and hear."""
