"""``python -m tests.lib.connect_server PORT``: a server of Spark Connect on loopback, until its input ends."""

import sys

from onefold.spark.session import session

if __name__ == "__main__":
    plugin = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": sys.argv[1],
        "spark.sql.shuffle.partitions": "4",
    }
    session("local[2]", memory="2g", config=plugin)
    print("ready", flush=True)
    sys.stdin.read()
