"""The console: a live page over running pipelines and servers. It only reads.

view      what is shown of one pipeline or server
folders   a pipeline, read from the folder that it writes to
servers   a server, asked for its figures
watch     all of them, looked at again and again; who listens hears what changed
entrance  who may ask
app       the routes; server: the process
"""
