"""What a kernel module sees of a device that this machine does not have."""
