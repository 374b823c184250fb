"""The attach socket, which gives processes the memory of the store and sees them die."""
