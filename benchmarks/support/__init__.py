"""What the benchmarks are made of; the benchmarks themselves lie one folder up."""
