"""The kernel families that come with the farm, one folder each."""
