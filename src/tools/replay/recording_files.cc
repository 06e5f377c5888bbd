#include "tools/replay/recording_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/str.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

// The header alone: files may be large.
Result<RecordingHeader> read_header(const std::string& path) {
  constexpr size_t kMost = 1 << 16;
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{404, strf("cannot read %s", quote(path).c_str())};
  Bytes bytes(kMost);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(kMost));
  bytes.resize(static_cast<size_t>(in.gcount()));
  return RecordReader(bytes).header();
}

}  // namespace

Result<Bytes> read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = in ? static_cast<std::streamoff>(in.tellg()) : -1;
  if (size < 0) return Error{404, strf("cannot read %s", quote(path).c_str())};
  Bytes bytes(static_cast<size_t>(size));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(bytes.data()), size);
  bytes.resize(static_cast<size_t>(in.gcount()));  // it may grow or shrink meanwhile
  return bytes;
}

Result<RecordingFiles> find_recordings(const std::string& path) {
  RecordingFiles out;
  std::error_code error;
  std::vector<std::string> paths;
  if (fs::is_directory(path, error)) {
    for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
      if (at->path().extension() == ".slrec") paths.push_back(at->path().string());
    }
    if (error)
      return Error{404, strf("cannot read %s: %s", quote(path).c_str(), error.message().c_str())};
    std::ranges::sort(paths);
    if (paths.empty())
      return Error{404, strf("%s has no recordings (*.slrec)", quote(path).c_str())};
  } else {
    Result<RecordingHeader> header = read_header(path);
    if (!header)
      return Error{header.error().code,
                   strf("%s: %s", path.c_str(), header.error().message.c_str())};
    out.runs.push_back({{{path, std::move(*header)}}});
    return out;
  }
  for (const std::string& p : paths) {
    Result<RecordingHeader> header = read_header(p);
    if (!header) {
      out.unreadable.push_back(p + ": " + header.error().message);
      continue;
    }
    auto run = std::ranges::find_if(
        out.runs, [&](const RecordedRun& r) { return r.header().run == header->run; });
    if (run == out.runs.end()) run = out.runs.insert(run, RecordedRun{});
    run->segments.push_back({p, std::move(*header)});
  }
  for (RecordedRun& r : out.runs)
    std::ranges::sort(r.segments, {}, [](const SegmentFile& f) { return f.header.segment; });
  std::ranges::stable_sort(out.runs, {}, [](const RecordedRun& r) { return r.header().began; });
  return out;
}

}  // namespace sluice
