"""What happens next: the rules of appends, seals, recovery and reads, as pure values."""
