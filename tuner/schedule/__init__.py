"""When campaigns fire, and the service that fires them."""
