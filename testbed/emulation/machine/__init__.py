"""What this kernel and machine can do and carry."""
