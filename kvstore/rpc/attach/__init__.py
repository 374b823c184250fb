"""The attach socket: it hands out the memory of the store and sees processes die."""
