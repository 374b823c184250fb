"""The wire: the only server-side importer of grpc."""
