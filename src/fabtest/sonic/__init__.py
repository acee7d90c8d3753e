"""What SONiC means: databases and their keys, CONFIG_DB and FRR rendering, QoS arithmetic, the hash.

Pure: it reads the model and returns values; nothing here touches a file or the machine.
"""
