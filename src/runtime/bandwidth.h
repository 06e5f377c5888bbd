// The limit that decoding is measured against: how fast this machine reads memory.
#pragma once

namespace sluice {

// Sustained read bandwidth in bytes per second with that many threads: best of several passes over
// memory larger than the caches, four streams per thread.
double measure_read_bandwidth(int threads);

}  // namespace sluice
