"""Check fleets of images, or one device by many machines, with Spark.

    import floe_spark
    fleet = floe_spark.check(spark, ["/images/a.img", "/images/b.img"], folder="/results/monday")
    fleet.findings.groupBy("id").count().show()

    report = floe_spark.check_device(spark, "/dev/mapper/ost0003", shards=32)

Every worker needs the package `floe`, the program, and the images or the device under the same
path. `program` names the program on the workers. Spark repeats tasks that were lost, and may run
slow ones twice; that changes no result.
"""

from ._device import check_device
from ._fleet import Fleet, check
from ._worker import fetch_url

__all__ = ["Fleet", "check", "check_device", "fetch_url"]
