"""Reports: figures with intervals (`statistics`), tables, JSON and pages (`report`), comparisons
(`compare`), and conditions that fail a run (`conditions`).

They work on the JSON of a report alone, so that old reports can be read as well.
"""
