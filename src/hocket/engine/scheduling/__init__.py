"""Who gets rows, pages and batches, and when: pure policy, without torch and without a clock."""
