"""The decode batch as arrays: rows that stay where they are, their ends, their KV slots ahead."""
