"""What holds for every test."""
