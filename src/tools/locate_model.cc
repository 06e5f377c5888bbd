#include "tools/locate_model.h"

#include <algorithm>

#include "base/log.h"
#include "base/str.h"

namespace sluice {

namespace {

std::string time_left(double seconds) {
  if (seconds < 100) return strf("%.0f s left", seconds);
  if (seconds < 100 * 60) return strf("%.0f min left", seconds / 60);
  return strf("%.1f h left", seconds / 3600);
}

}  // namespace

PullOptions PullProgress::options() {
  PullOptions o;
  if (quiet_) return o;
  const char* clear = line_.enabled() ? "\r\033[K" : "";
  o.say = [clear](const std::string& text) { log_plain("%s%s", clear, text.c_str()); };
  o.progress = [this](uint64_t done, uint64_t total) { show(done, total); };
  return o;
}

void PullProgress::show(uint64_t done, uint64_t total) {
  auto now = Clock::now();
  if (!last_.empty() && done < last_.back().second) last_.clear();  // a file was begun anew
  last_.emplace_back(now, done);
  while (now - last_.front().first > std::chrono::seconds(8)) last_.pop_front();
  double seconds = std::chrono::duration<double>(now - last_.front().first).count();
  double rate = seconds > 0.5 ? static_cast<double>(done - last_.front().second) / seconds : 0;
  double fraction = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
  std::string text = strf("%3.0f%% %s of %s", fraction * 100, human_bytes(done).c_str(),
                          human_bytes(total).c_str());
  if (rate > 0) {
    text += strf(", %s/s, %s", human_bytes(static_cast<uint64_t>(rate)).c_str(),
                 time_left(static_cast<double>(total - std::min(done, total)) / rate).c_str());
  }
  if (done >= total) return line_.clear();
  line_.show(progress_bar(fraction) + " " + text);
  if (line_.enabled() || now < next_line_) return;
  next_line_ = now + std::chrono::seconds(15);
  log_plain("%s", text.c_str());
}

std::string name_of_model(const std::string& path) {
  if (!path.starts_with(models_folder())) return path;
  for (const StoredModel& s : stored_models())
    if (s.path == path) return s.name;
  return path;
}

Result<std::string> locate_model(const std::string& name, bool quiet) {
  PullProgress progress(quiet);
  return find_model(name, progress.options());
}

}  // namespace sluice
