"""Reports: figures with intervals (`statistics`), tables, JSON and pages (`report`), two reports beside each other
(`compare`), and conditions that fail a run (`conditions`).

All of them read the JSON of a report alone, so that an old one can be read as well.
"""
