"""What the demo needs beside the runtime: a desk that keeps its own record, and sample mail."""
