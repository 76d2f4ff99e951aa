"""What the user asked for: frozen models of the job spec. Never aware of hosts."""
