"""The radio gateway's server: frames come in from stations, each counts once, and one server answers.

reception     what a link hands over                   service      the way of a reception, from its arrival to its end
lns, lns_json Basics Station over websockets           sessions     what is known of devices while the server runs
semtech_udp   Semtech's packet forwarder               claiming     claims in batches; a coordinator that is down
chirpstack_*  ChirpStack's gateway bridge over MQTT    delivery     the books, the log, the device: in this order
registry      which devices are ours                   upstream     records into the durable log
regions       radio plans                              downlinks    acknowledgements, and when they are late
server, app   the process and its routes               recovery     what an earlier run left behind
limits        every bound                              judging      whose frame it is, and whether it counts
claimant      what a desk tells whoever claims         metrics      what there is to watch
"""
