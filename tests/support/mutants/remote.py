"""The faults of the remote store that its named tests have to find."""

from mutants.mutant import Mutant

REMOTE_MUTANTS = [
    Mutant(
        "births-not-compared",
        "kvstore.remote.history.shard_revisions",
        "ShardRevisions._accepted",
        "ages <= {Age.SAME}",
        "ages <= {Age.SAME, Age.LATER}",
    ),
    Mutant(
        "known-before-heard",
        "kvstore.remote.history.reviser",
        "Reviser._revise",
        "self.revised(digest)",
        "self._journal.save(digest, __import__('dataclasses').replace(record.entry(), known={"
        "shard: each.revision for shard, each in seen.items() if each.revision}))\n"
        "self.revised(digest)",
    ),
    Mutant(
        "revision-read-at-send-alone",
        "kvstore.remote.transfers.writer",
        "Writer._write",
        "is_born = each.epoch == epoch and each.revision in {None, revision}",
        "is_born = True",
    ),
    Mutant(
        "epoch-of-the-send",
        "kvstore.remote.transfers.writer",
        "Writer._write",
        "record, epoch = batch[0].record, max(each.epoch for each in batch)",
        "record, epoch = batch[0].record, batch[0].record.epoch",
    ),
    Mutant(
        "revision-cached-for-ever",
        "kvstore.remote.transfers.writer",
        "Writer._write",
        "revisions = self._gate.current(record, epoch, shards, deadline)",
        "revisions = {each.shard: each.revision or self._gate.current("
        "record, epoch, shards, deadline)[each.shard] for each in young}",
    ),
    Mutant(
        "queue-not-emptied",
        "kvstore.remote.transfers.write_queue",
        "WriteQueue.cancel",
        "return self._cancel(lambda each: each.page.key.namespace == namespace)",
        "return []",
    ),
    Mutant(
        "earlier-revision-accepted",
        "kvstore.remote.history.shard_revisions",
        "ShardRevisions._accepted",
        "ages <= {Age.SAME}",
        "ages <= {Age.SAME, Age.EARLIER}",
    ),
    Mutant(
        "removals-not-repeated",
        "kvstore.remote.history.removals",
        "RemoteRemovals._repeat",
        "self._write(record, shard, revision)",
        "pass",
    ),
    Mutant(
        "no-second-revision",
        "kvstore.remote.transfers.reader",
        "Reader._read",
        "again is None or again.get(shard) != used.get(shard)",
        "False",
    ),
    Mutant(
        "removal-not-in-the-journal",
        "kvstore.remote.history.journal",
        "RemovalJournal.save",
        "_replace(path, content + xxh3_64_digest(content))",
        "pass",
    ),
    Mutant(
        "overwritten-removal-accepted",
        "kvstore.remote.history.removals",
        "RemoteRemovals._renew",
        "not ages.isdisjoint({Age.EARLIER, Age.FORKED})",
        "False",
    ),
    Mutant(
        "staging-used-again",
        "kvstore.remote.transfers.staging",
        "Staging.drop",
        'self._memory = memoryview(b"")',
        "pass",
    ),
    Mutant(
        "checksum-computed-on-receipt",
        "kvstore.remote.sealing",
        "PageSealer.open",
        "xxh3_64_intdigest(plain[: page.page_bytes]) != checksum",
        "False",
    ),
    Mutant(
        "ancestors-not-refreshed",
        "kvstore.remote.transfers.page_names",
        "Refreshes.before_writes",
        "each.key not in written",
        "False",
    ),
    Mutant(
        "look-without-a-deadline",
        "kvstore.remote.remote_store",
        "RemoteStore._look",
        "end = min(deadline, begun + self._settings.timeout_seconds)",
        "end = begun + 100 * self._settings.timeout_seconds",
    ),
    Mutant(
        "ping-is-a-probe",
        "kvstore.remote.liveness.probe",
        "Probe._try",
        "is_written = self._writes and self._write(name, sent)",
        "return self._calls.time_ms(self._clock() + self._seconds)",
    ),
    Mutant(
        "each-late-thread-counts",
        "kvstore.remote.liveness.breaker",
        "Breaker.fail",
        "self.is_open or began < self._last_failure",
        "self.is_open",
    ),
    Mutant(
        "returns-at-full-speed",
        "kvstore.remote.liveness.write_pace",
        "WritePace.restart",
        "self.share = LEAST_SHARE",
        "pass",
    ),
]
