"""Parameters on a device, and the device that tests have for that."""
