"""The append-only log in segment files: one writer, any number of readers, nothing acknowledged before it is durable.

segments.py   SegmentLog, the writer: group commit, rolling, repair, opening, retention
reader.py     LogReader, for any process: by offset, by time, in parts; the index of a segment
frames.py     records as bytes; going through a segment; torn or damaged?
disk.py       the names in the folder, the mark, the snapshots, and the file system as a door
salvage.py    what is wrong with a damaged log, and all that can be saved of it
"""
