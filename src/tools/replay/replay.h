// sluice replay: what a recording says, and whether it happens again. For cli_replay.cc.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "runtime/options.h"
#include "tools/replay/recording_files.h"

namespace sluice {

struct ReplayOptions {
  std::string path;
  bool schedule = false;
  EngineOptions engine;  // model empty: nothing is computed
  std::string what_if;   // "budget=256,order=priority"
  bool stall = false;    // tell the longest stall
  bool json = false;
};

int cmd_replay(const ReplayOptions& options);

// Its parts; each prints, and returns an exit code.
int replay_model(const RecordingFiles& files, const ReplayOptions& options);
int replay_what_if(const RecordingFiles& files, const ReplayOptions& options);
int replay_schedules(const RecordingFiles& files, bool json);

// Version and build id, as recordings name the program that wrote them.
std::string this_build();

}  // namespace sluice
