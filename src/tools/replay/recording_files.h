// Files of recordings: one segment each, in a folder those of several runs. One thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "core/recording.h"

namespace sluice {

struct SegmentFile {
  std::string path;
  RecordingHeader header;
};

// The segments of one run, in order.
struct RecordedRun {
  std::vector<SegmentFile> segments;
  const RecordingHeader& header() const { return segments.front().header; }
};

struct RecordingFiles {
  std::vector<RecordedRun> runs;  // the oldest first
  // Files that have no whole header: a process ended as it began them, or they are no recordings.
  std::vector<std::string> unreadable;  // "PATH: why"
};

// A file, or all of a folder (400).
Result<RecordingFiles> find_recordings(const std::string& path);
Result<Bytes> read_bytes(const std::string& path);

}  // namespace sluice
