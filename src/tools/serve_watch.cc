#include "tools/serve_watch.h"

#include <algorithm>
#include <set>
#include <thread>

#include "base/failure.h"
#include "base/log.h"
#include "tensor/file_watch.h"
#include "tools/notify.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;

// Paths are for the log; clients get this.
const ApiError kLost{503, "the model's file cannot be read any more: see the server's log", "",
                     "model_lost"};
const ApiError kChanged{503,
                        "the model's file was changed while it was served: start the server anew",
                        "", "model_changed"};

// Answers what runs, for at most two seconds, and ends the process. The engine hangs for good, and
// its thread may be the one that faulted: no destructor can run.
[[noreturn]] void lose_model(Serving& s) {
  s.service.health().fail(kLost.code, kLost.message);
  notify_manager("STOPPING=1");
  s.service.drain();
  const Clock& clock = s.service.clock();
  Time end = clock.now() + std::chrono::seconds(2);
  do {  // again and again: a request may be on its way to the engine
    s.service.end_all(kLost);
    std::this_thread::sleep_for(milliseconds(20));
  } while (s.http.stats().busy > 0 && clock.now() < end);
  exit_now(kExitFailure);
}

void reload(Serving& s) {
  if (s.service.keys().needed()) {
    if (auto r = s.service.keys().reload()) {
      LOG(info, "reloaded: %zu keys (%zu new, %zu removed)", r->num_keys, r->num_new,
          r->num_removed);
    } else {
      LOG(error, "kept the keys as they were: %s", r.error().message.c_str());
    }
  }
  if (s.tls) {
    if (auto r = s.tls->reload()) {
      LOG(info, "reloaded: the certificate, for new connections");
    } else {
      LOG(error, "kept the certificate as it was: %s", r.error().message.c_str());
    }
  }
  if (!s.tls && !s.service.keys().needed())
    LOG(info, "nothing to reload: neither --api-key-file nor --tls-cert was given");
}

// Compares model files with what was mapped.
class FileCheck {
 public:
  void run(Serving& s) {
    if (s.service.health().failure()) return;
    for (const FileChange& c : changed_files()) {
      if (!told_.insert(c.path + c.what).second) continue;
      if (!c.in_place) {
        LOG(warn, "model file %s %s: the one that was loaded is still served", c.path.c_str(),
            c.what.c_str());
        continue;
      }
      LOG(error, "model file %s %s while it was served: requests get 503; start the server anew",
          c.path.c_str(), c.what.c_str());
      s.service.health().fail(kChanged.code, kChanged.message);
      s.service.end_all(kChanged);
    }
  }

 private:
  std::set<std::string> told_;
};

// A word on every change of health; true: all is well.
class HealthCheck {
 public:
  bool run(Serving& s) {
    Time now = s.service.clock().now();
    double stalled = s.service.meters().stalled(now);
    if (stalled <= s.options.stall_timeout) stalled = 0;
    if (stalled > 0 && !stalled_)
      LOG(error, "no step for %.0f s with requests to answer: /health says 503", stalled);
    stalled_ = stalled > 0;
    auto p = s.service.health().problem(now);
    bool told = s.service.health().failure().has_value();  // by whoever found it
    if (p && !problem_ && !told) LOG(error, "%s: /health says 503", p->reason.c_str());
    problem_ = p.has_value();
    return !stalled_ && !problem_;
  }

 private:
  bool stalled_ = false, problem_ = false;
};

// SIGUSR1. Without --record it says so.
void keep_recording(Serving& s) {
  FlightRecorder* recorder = s.service.session().flight_recorder();
  if (!recorder) return LOG(warn, "SIGUSR1 keeps a recording, and there is none: see --record");
  try {
    Result<std::string> folder = recorder->keep("signal");
    if (!folder) LOG(warn, "%s", folder.error().message.c_str());
  } catch (...) {
    log_exception("recording");
  }
}

}  // namespace

void watch(Serving& s) {
  const ServeOptions& o = s.options;
  double seconds = std::min({o.ping > 0 ? o.ping / 2 : 1, o.stall_timeout / 4, 1.0});
  auto pause = milliseconds(std::max<int64_t>(static_cast<int64_t>(seconds * 1e3), 50));
  FileCheck files;
  HealthCheck health;
  const Clock& clock = s.service.clock();
  Time next{0};
  for (;;) {
    Wake wake = s.signals.wait(std::max(next - clock.now(), Time{0}));
    if (wake == Wake::stop) return;
    if (wake == Wake::fault) lose_model(s);
    if (wake == Wake::keep) keep_recording(s);
    if (wake == Wake::reload) {
      try {
        reload(s);
      } catch (...) {
        log_exception("reload");
      }
    }
    if (clock.now() < next) continue;
    next = clock.now() + pause;
    try {
      s.service.beat();
      s.service.tick();
      if (s.grpc_front) s.grpc_front->tick();
      files.run(s);
      if (health.run(s)) notify_manager("WATCHDOG=1");
    } catch (...) {
      log_exception("watch");  // there is another round
    }
  }
}

void drain(Serving& s) {
  s.service.health().rest();
  s.service.drain();
  if (s.grpc_front) s.grpc_front->tick();
  Meters& meters = s.service.meters();
  log_plain("sluice: stopping; %d requests may take %.0f s to finish", meters.outstanding(),
            s.options.grace);
  const Clock& clock = s.service.clock();
  bool now = false;
  auto wait = [&](int64_t ms) {
    Wake wake = s.signals.wait(milliseconds(ms));
    if (wake == Wake::fault) lose_model(s);
    if (wake == Wake::keep) keep_recording(s);
    now |= wake == Wake::stop;
  };
  Time end = clock.now() + Time(static_cast<int64_t>(s.options.grace * 1e9));
  auto busy = [&] {
    return meters.outstanding() > 0 || s.http.stats().busy > 0 ||
           (s.grpc_front && s.grpc_front->busy() > 0);
  };
  while (busy() && clock.now() < end && !now) wait(20);
  if (meters.outstanding() > 0) {
    LOG(warn, "cut off %d requests", meters.outstanding());
    s.service.cancel_all();
  }
  s.http.drain();
  end = clock.now() + std::chrono::seconds(1);  // for the last bytes
  while (!now && busy() && clock.now() < end) wait(5);
  if (s.grpc) s.grpc->stop();  // its calls end on io threads
  s.service.finish_work();
  s.http.stop();
}

}  // namespace sluice
