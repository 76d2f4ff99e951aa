"""What a run tells: metrics, exit reports, status. Readers trust files only."""
