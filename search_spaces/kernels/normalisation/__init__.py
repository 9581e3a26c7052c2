"""Layer norm and RMS norm over rows."""
