"""The processors of a machine, as a device."""
