"""The append-only log in segment files: one writer, any number of readers, nothing acknowledged before it is durable.

log.py        SegmentLog, the writer: group commit, rolling, repair
opening.py    what it does before it may append: find the end, make sure of it
retention.py  removing the oldest segments
reader.py     LogReader, for any process: by offset, by time, in parts
frames.py     records as bytes
scan.py       going through a segment; torn or damaged?
index.py      where to begin reading in a segment: a cache
snapshots.py  snapshots with their position
salvage.py    what is wrong with a damaged log, and all that can be saved of it
folder.py     the names in the folder, the mark, what an error means
files.py      the file system, as a door
"""
