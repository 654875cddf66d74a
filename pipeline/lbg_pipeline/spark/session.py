"""Spark session of a command, and its failures as one line."""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import signal
import sys
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from types import FrameType, TracebackType

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import lbg_core
import lbg_pipeline
from lbg_pipeline.errors import SparkUnusable, error_of, reason_of

DRIVER_MEMORY = "4g"
"""In local mode all the work is done in the driver; Spark's own default of 1g is for drivers that only coordinate."""

SHUFFLE_PARTITION_BYTES = 64 << 20
"""Bytes read for each partition of a shuffle: the narrow rows that get there are a fraction of it."""

_PARTITIONS = "spark.sql.shuffle.partitions"


def _java_options() -> str:
    logging_uri = Path(__file__).with_name("log4j2.properties").as_uri()
    return (
        f"-Dlog4j2.configurationFile={logging_uri} -Dlog4j.configurationFile={logging_uri} "
        # The work is done in Python: more optimisation in the JVM does not pay in a job of minutes.
        "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC "
        # A fifth of a short job is the verification of classes, which are Spark's own.
        "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    )


def spark_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on `master`, by default spark-submit's where there is one and local[*] elsewhere. `settings` are
    Spark's own, by its names, and win over ours. Executors receive LBG's packages. Raises SparkUnusable."""
    settings = settings or {}
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    _refuse_connect(master or "", settings)
    if not is_submitted:
        _require_java()
        os.environ[_PYTHON] = settings.get(_PYTHON_SETTING) or os.environ.get(_PYTHON) or sys.executable
    ours = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": "false"}
    if not is_submitted:
        ours |= {
            "spark.master": master or "local[*]",
            "spark.driver.memory": DRIVER_MEMORY,
            "spark.driver.extraJavaOptions": _java_options(),
            "spark.ui.enabled": "false",
        }
        if (master or "local").startswith("local"):
            # What runs on this machine alone need not be reachable from others.
            ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
            # Plans are chosen for the input's size (`fit_shuffles`): to plan again after each stage costs a second.
            ours["spark.sql.adaptive.enabled"] = "false"
    elif master is not None:
        ours["spark.master"] = master
    conf = SparkConf(loadDefaults=False).setAll(list({**ours, "spark.app.name": name, **settings}.items()))
    logging.getLogger("py4j").setLevel(
        logging.CRITICAL
    )  # an exception in an epoch is raised by its stream too
    try:
        if not is_submitted:
            _JVM.start(conf)
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
        _send_packages(spark.sparkContext)
        fit_shuffles(spark)
        return spark
    except (PySparkException, Py4JError) as error:
        reason = _JVM.reason() or reason_of(str(error))
        raise SparkUnusable(f"Spark does not start with master {master or 'local[*]'}: {reason}") from error


_PYTHON, _PYTHON_SETTING = "PYSPARK_PYTHON", "spark.pyspark.python"


def _refuse_connect(master: str, settings: Mapping[str, str]) -> None:
    if master.startswith("sc:") or "spark.remote" in settings or "SPARK_REMOTE" in os.environ:
        raise SparkUnusable(
            "Spark Connect cannot run these jobs, which use Hadoop's file systems: give --master the cluster's own "
            "URL, as spark://HOST:7077, and unset SPARK_REMOTE"
        )


class _Jvm:
    """Spark's JVM of this process. Its output, Java's warnings and Spark's log, has the reason if it fails; LBG_DEBUG=1
    shows it."""

    def __init__(self) -> None:
        self._last_lines: deque[str] = deque(maxlen=200)

    def start(self, conf: SparkConf) -> None:
        """Starts it, if it does not run. It is in a session of its own: a signal to this process' group would end it in
        the middle of a job."""
        if SparkContext._gateway is not None:
            return
        reader, writer = os.pipe()
        thread = Thread(target=self._read, args=(reader,), name="spark-output", daemon=True)
        thread.start()
        try:
            popen = {"start_new_session": True, "stdout": writer, "stderr": writer}
            gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]  # untyped in PySpark
        except PySparkException:
            os.close(writer)
            writer = -1
            thread.join()
            raise
        finally:
            if writer >= 0:
                os.close(writer)
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)

    def reason(self) -> str | None:
        """Of what it logged last, why it ended or why a master refused; None if it logged nothing of that."""
        for pattern in (_KILLED, _JAVA_ERROR):
            for line in self._last_lines:
                if match := pattern.search(line):
                    return match["reason"]
        return None

    def _read(self, reader: int) -> None:
        with os.fdopen(reader, errors="replace") as lines:
            for line in lines:
                self._last_lines.append(line)
                if os.environ.get("LBG_DEBUG") == "1":
                    sys.stderr.write(line)


_JVM = _Jvm()
_KILLED = re.compile(r"Application has been killed\. Reason: (?P<reason>.+)")
_JAVA_ERROR = re.compile(
    r"(Exception in thread .*?Exception: |Error: |^)"
    r"(?P<reason>Could not (reserve|create) .+|Unrecognized .+|Invalid .+|(?<=Exception: ).+|(?<=Error: ).+)"
)


def _send_packages(context: SparkContext) -> None:
    """Sends LBG's packages to executors whose Python is not this one: it has PyArrow and NumPy, and need not have LBG,
    or this version of it."""
    if str(context.master).startswith("local") and os.environ.get(_PYTHON) == sys.executable:
        return
    archive = Path(context._temp_dir, "lbg.zip")  # Spark deletes it at its end
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in (lbg_core, lbg_pipeline):
            root = Path(package.__path__[0])
            for file in sorted(root.rglob("*.py")):
                packed.write(file, file.relative_to(root.parent))
    context.addPyFile(str(archive))


def fit_shuffles(spark: SparkSession, *, read_bytes: int = 0) -> None:
    """Shuffle partitions on one machine, for a job that reads `read_bytes`. A task costs some ten milliseconds however
    little it has to do, and Spark's 200 for each shuffle are for clusters; too few make partitions that do not fit
    memory. The user's setting takes precedence."""
    context = spark.sparkContext
    if str(context.master).startswith("local") and not context.getConf().contains(_PARTITIONS):
        fitting = math.ceil(read_bytes / SHUFFLE_PARTITION_BYTES)
        spark.conf.set(_PARTITIONS, max(2 * context.defaultParallelism, fitting))


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home:
        if not os.access(Path(home, "bin", "java"), os.X_OK):
            raise SparkUnusable(f"JAVA_HOME is {home}, which has no bin/java: correct or unset it")
    elif shutil.which("java") is None:
        raise SparkUnusable(
            "Spark needs Java 17 or 21, and none is installed: install a JRE (Debian: "
            "apt-get install default-jre-headless)"
        )


@contextmanager
def spark_job(name: str, master: str | None, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """`conf` are settings of Spark's. Raises PipelineError in place of Spark's errors. SIGINT and SIGTERM stop Spark,
    which frees its executors, and then raise KeyboardInterrupt and SystemExit."""
    with _StopSignals() as signals:
        try:
            spark = spark_session(f"lbg {name}", master=master, settings=conf)
            signals.stop_at_next(spark)
            try:
                yield spark
            finally:
                spark.stop()
        except (PySparkException, Py4JError) as error:
            raise error_of(error) from error


GRACE_S = 10.0
"""From a signal to the end of a process that makes no call to Spark."""


class _StopSignals:
    """Handlers of SIGINT and SIGTERM for the length of a job. One that raised in the middle of a call to the JVM would
    leave its answer to the next call: Spark is stopped from another thread, and the call fails."""

    def __enter__(self) -> _StopSignals:
        self._spark: SparkSession | None = None
        self._raised: BaseException | None = None
        self._has_left = Event()
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._handle_both()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._has_left.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._raised is not None and error is not None:
            self._report()
            raise self._raised from None

    def stop_at_next(self, spark: SparkSession) -> None:
        """The next signal stops `spark`; until then it ends the process."""
        self._spark = spark
        self._handle_both()  # PySpark sets a handler of its own

    def _handle_both(self) -> None:
        for number in self._before:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        self._raised = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        if self._spark is None:
            raise self._raised
        Thread(target=self._stop, args=(self._spark.sparkContext, 128 + number), daemon=True).start()

    def _stop(self, context: SparkContext, status: int) -> None:
        # In a thread of its own, which has a connection of its own. The session is left to the job's thread.
        with suppress(Py4JError):
            context._jsc.sc().stop()
        if not self._has_left.wait(GRACE_S):
            self._report()
            os._exit(status)

    def _report(self) -> None:
        if isinstance(self._raised, SystemExit):  # a command has its own line of KeyboardInterrupt
            sys.stderr.write(
                "lbg: terminated: every table in --out is whole, of this run or an earlier one\n"
            )
            sys.stderr.flush()
