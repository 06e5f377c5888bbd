// Detects changes to model files while they are mapped. A file that shrinks takes pages away
// that are still read (SIGBUS); one that is written in place changes weights under a running model.
// MappedFile enters and leaves files; the process has one list, because signals have one handler.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sluice {

// One mapping. `fd` stays open: it names the file that was mapped, whatever the path names by now.
struct WatchedFile {
  std::string path;
  int fd = -1;
  std::atomic<uintptr_t> begin{0}, end{0};  // end 0: not mapped
  std::atomic<int> num_ranges{0};           // that are read in place
  int64_t size = 0, mtime_ns = 0;
  uint64_t inode = 0, device = 0;
};

struct FileChange {
  std::string path, what;
  bool in_place;  // false: the path names another file now, and the mapped one is as it was
};
// Compares files of which anything is still read in place with what they were when mapped.
// Any thread.
std::vector<FileChange> changed_files();

// From now on a fault in a mapped file is ours. Without a `wake_fd` it ends the process: exit code
// 1, and one line that names the file. With one (an eventfd) it is written to, the thread that
// faulted never runs on, and faulted_file() has the path; whoever waits for it ends the process.
// Any other SIGBUS does what it did before.
void catch_file_faults(int wake_fd = -1);
// Empty: no fault yet.
std::string faulted_file();
std::string fault_message(const std::string& path);

// For MappedFile. Null: the list is full, and the file unwatched.
WatchedFile* enter_file(const std::string& path, int fd, std::span<const std::byte> mapped);
void leave_file(WatchedFile* file);

}  // namespace sluice
