"""Faults of the data's way: arithmetic, collectives, transports."""

from tests.mutants.fault import Fault

FAULTS = {
    "an average divides by the number of ranks that send": Fault(
        "custom_ops/core/arithmetic/reduce_loops.h",
        "r.op == ReduceOp::kAverage ? r.postscale / r.divisor : r.postscale",
        "r.op == ReduceOp::kAverage ? r.postscale / r.size : r.postscale",
        "reduce_test",
    ),
    "an average of integers is their sum": Fault(
        "custom_ops/core/arithmetic/reduce_loops.h",
        "Arithmetic<T>::Store(values[i] / divisor)",
        "Arithmetic<T>::Store(values[i] / (divisor / divisor))",
        "reduce_test",
    ),
    "only the first rank is scaled": Fault(
        "custom_ops/core/arithmetic/reduce_loops.h",
        "LoadBlock(source, r.prescale, scaled, length);",
        "LoadBlock(source, 1.0, scaled, length);",
        "reduce_test",
    ),
    "the last rank is not added": Fault(
        "custom_ops/core/arithmetic/reduce_loops.h",
        "for (int rank = paired ? 2 : 1; rank < r.size; ++rank) {",
        "for (int rank = paired ? 2 : 1; rank + 1 < r.size; ++rank) {",
        "reduce_test",
    ),
    "a minimum hides a NaN": Fault(
        "custom_ops/core/arithmetic/reduce_loops.h",
        "return (b < a) | (b != b) ? b : a;",
        "return b < a ? b : a;",
        "reduce_test",
    ),
    "a scaled integer leaves its range": Fault(
        "custom_ops/core/arithmetic/reduce_loops.h",
        "    if (product >= kBeyond) return Limits::max();\n",
        "    if (product >= kBeyond) return 0;\n",
        "reduce_test",
    ),
    "bfloat16 is cut and not rounded": Fault(
        "custom_ops/core/arithmetic/half.h",
        "(bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16",
        "bits >> 16",
        "reduce_test",
    ),
    "float16 has no subnormal numbers": Fault(
        "custom_ops/core/arithmetic/half.h",
        "magnitude < 0x38800000u ? subnormal : normal",
        "magnitude < 0x38800000u ? 0u : normal",
        "reduce_test",
    ),
    "adasum takes the whole projection away": Fault(
        "custom_ops/core/arithmetic/adasum_pair.cc",
        "1 - dots.ab / (2 * dots.aa)",
        "1 - dots.ab / dots.aa",
        "adasum_test",
    ),
    "adasum adds the dot products of its own half only": Fault(
        "custom_ops/core/collectives/adasum.cc",
        "Add(theirs_[i], &sums_[i]);",
        "Add(AdasumDots{}, &sums_[i]);",
        "adasum_test",
    ),
    "a rank gets its own slice in the place of another": Fault(
        "custom_ops/core/collectives/allreduce.cc",
        "lane.tag + 1, range.out + Begin(peer), Bytes(peer), writable)",
        "lane.tag + 1, range.out + Begin(rank), Bytes(peer), writable)",
        "engine_test",
    ),
    "the members of a group all get the first one's result": Fault(
        "custom_ops/core/collectives/allreduce.cc",
        "if (bytes > 0 && buffer.out != next) std::memcpy(buffer.out, next, bytes);",
        "if (bytes > 0 && buffer.out != next) std::memcpy(buffer.out, Packed(), bytes);",
        "shared_test",
    ),
    "several hosts scale twice": Fault(
        "custom_ops/core/collectives/hierarchical_allreduce.cc",
        "    partial.prescale = partial.postscale = 1.0;\n",
        "",
        "hierarchical_test",
    ),
    "several hosts divide twice": Fault(
        "custom_ops/core/collectives/hierarchical_allreduce.cc",
        "    if (partial.op == ReduceOp::kAverage) partial.op = ReduceOp::kSum;\n",
        "",
        "hierarchical_test",
    ),
    "several hosts leave the last segment out": Fault(
        "custom_ops/core/collectives/hierarchical_allreduce.cc",
        "(range.count + length_ - 1) / length_",
        "range.count / length_",
        "hierarchical_test",
    ),
    "a broadcast counts its root among those that have not joined": Fault(
        "custom_ops/core/collectives/broadcast.cc",
        "(lane.transport->rank() - root + size) % size;",
        "(lane.transport->rank() + size) % size;",
        "join_data_test",
    ),
    "a reducescatter leaves the last member of a group out": Fault(
        "custom_ops/core/collectives/reducescatter.cc",
        "      if (bytes > 0) std::memcpy(buffer.out, next, bytes);\n",
        "      if (bytes > 0 && next == slice_) std::memcpy(buffer.out, next, bytes);\n",
        "join_data_test",
    ),
    "alltoall's splits are swapped": Fault(
        "custom_ops/core/collectives/row_agreement.cc",
        "splits_.empty() ? buffer.rows : splits_[Rank(index)]",
        "splits_.empty() ? buffer.rows : splits_[splits_.size() - 1 - Rank(index)]",
        "rows_test",
    ),
    "rows are written one rank too far": Fault(
        "custom_ops/core/collectives/row_agreement.cc",
        "for (size_t other = 0; other < index; ++other) rows += received(buffer, other);",
        "for (size_t other = 0; other + 1 < index; ++other) rows += received(buffer, other);",
        "rows_test",
    ),
    "ranks do not hear that another one is out of memory": Fault(
        "custom_ops/core/collectives/row_agreement.cc",
        "if (verdicts_[Verdict(index)] == kNoMemory) {",
        "if (false) {",
        "nccl_rows_test",
    ),
    "a reduced slice reaches the first peer only": Fault(
        "custom_ops/core/collectives/shared_allreduce.cc",
        "for (const Peer& peer : peers_) std::memcpy(peer.result + at, reduced, bytes);",
        "std::memcpy(peers_.front().result + at, reduced, bytes);",
        "shared_test",
    ),
    "a slice is reduced before its parts are there": Fault(
        "custom_ops/core/collectives/shared_allreduce.cc",
        "    for (const Peer& peer : peers_) ready = std::min(ready, peer.ready);\n",
        "",
        "shared_test",
    ),
    "memory of an arena is given out twice": Fault(
        "custom_ops/transport/arena.cc",
        "if (length > need) free_.emplace(begin + need, length - need);",
        "if (length > need) free_.emplace(begin, length - need);",
        "arena_test",
    ),
    "free memory of an arena falls apart": Fault(
        "custom_ops/transport/arena.cc",
        "if (before->first + before->second == begin) {",
        "if (false) {",
        "arena_test",
    ),
    "a copy past the caches forgets its end": Fault(
        "custom_ops/transport/copy.cc",
        "  std::memcpy(target + at, source + at, bytes - at);\n",
        "",
        "copy_test",
    ),
    "a long message repeats its first part": Fault(
        "custom_ops/transport/shm.cc",
        "static_cast<const char*>(send->from) + send->moved, length, false);",
        "static_cast<const char*>(send->from), length, false);",
        "shm_test",
    ),
    "a slot is free again before its bytes are read": Fault(
        "custom_ops/transport/shm.cc",
        "      ++peer->views;\n      receive->complete = true;\n",
        "      ++peer->views;\n      receive->complete = true;\n      FreeSlot(peer, slot);\n",
        "shm_traffic_test",
    ),
    "memory of another process is taken for a peer's": Fault(
        "custom_ops/transport/shm_segment.cc",
        "if (std::string(target).find(address.substr(space + 1)) == std::string::npos) {",
        "if (false) {",
        "segment_test",
    ),
}
