#include "formats/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "base/crc32c.h"
#include "base/directory.h"
#include "base/error.h"
#include "base/json_object.h"
#include "base/map_guard.h"
#include "base/text.h"
#include "formats/json_text.h"
#include "formats/peft.h"
#include "formats/safetensors.h"
#include "formats/shape.h"
#include "formats/state_io.h"

namespace jackscrew {

namespace {

constexpr int64_t kFormat = 2;        // checkpoint.json ends with its own checksum
constexpr int64_t kOldestFormat = 1;  // without one
constexpr const char* kDirectoryPrefix = "checkpoint-";
constexpr const char* kState = "state.safetensors";
constexpr const char* kInfo = "checkpoint.json";
constexpr const char* kMasters = "masters";
constexpr const char* kUnfinished = ".part";  // ends the name of a checkpoint being written

// The number in "checkpoint-<step>".
std::optional<int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kDirectoryPrefix)) return std::nullopt;
  const std::string_view number =
      std::string_view(name).substr(std::string_view(kDirectoryPrefix).size());
  const std::optional<int64_t> step = parse_int(number);
  if (!step || *step < 0 || std::to_string(*step) != number) return std::nullopt;
  return step;
}

// Whether a directory holds a checkpoint of this program, be it damaged. Others have directories of
// such names, too.
bool is_own(const fs::path& path) {
  return is_checkpoint(path) || is_there(path / kState);
}

// By the name of one being written first: what a process that is killed meanwhile leaves of it then
// passes for no checkpoint.
void remove_checkpoint(const fs::path& path) {
  const fs::path renamed = path.string() + kUnfinished;
  std::error_code refused, ignored;  // what stays wastes space: see unfinished_checkpoints()
  fs::rename(path, renamed, refused);
  fs::remove_all(refused ? path : renamed, ignored);
}

[[noreturn]] void damaged(const fs::path& checkpoint, const std::string& why) {
  throw Error(ErrorKind::model, fmt::format("{}: {}", checkpoint.string(), why),
              "remove this checkpoint, or choose another with resume=PATH");
}

// Makes `to` a hard link to a file, or a copy where the file system has no hard links.
void link_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::create_hard_link(from, to, error);
  if (error) fs::copy_file(from, to, error);
  if (error) {
    fail(ErrorKind::generic, "cannot link {} to {}: {}", from.string(), to.string(),
         error.message());
  }
}

std::vector<SafetensorsSpec> saved_specs(const StateSource& states) {
  std::vector<SafetensorsSpec> specs;
  states([&](const StateRef& state) {
    if (state.save) specs.push_back(tensor_spec(state.name, state.view));
  });
  return specs;
}

// A state that lies in a file, as checkpoint.json describes it.
struct FileState {
  StateRef state;
  std::string name;  // in masters/
  uint32_t crc32c = 0;
};

std::vector<FileState> states_in_files(const StateSource& states) {
  std::vector<FileState> files;
  states([&](const StateRef& state) {
    if (!state.file.empty()) files.push_back({state, fmt::format("{:08}.bin", files.size())});
  });
  return files;
}

// Writes the file of a state of several ranks, whichever holds it; returns the checksum of its
// values.
uint32_t copy_file(const FileState& file, const fs::path& to) {
  Crc32c crc;
  FileWriter out(to);
  file.state.remote->read([&](std::span<const uint8_t> bytes) {
    crc.add(bytes);
    out.write(bytes.data(), bytes.size());
  });
  // Files are rounded up to whole cache lines; the checksum is of the tensor's own bytes.
  const int64_t bytes = file.state.view.bytes();
  out.write(std::string(static_cast<size_t>(booked_bytes(bytes) - bytes), '\0'));
  out.close();
  return crc.value();
}

// Fills masters/ with the states that lie in files, by links or, of several ranks, by copies, and
// computes their checksums.
void link_files(const fs::path& directory, std::vector<FileState>& files) {
  if (!files.empty()) make_directories(directory / kMasters);
  for (FileState& file : files) {
    if (file.state.remote) {
      file.crc32c = copy_file(file, directory / kMasters / file.name);
      continue;
    }
    link_file(file.state.file, directory / kMasters / file.name);
    // Files are rounded up to whole cache lines; the checksum is of the tensor's own bytes.
    file.crc32c = crc32c(bytes_of(file.state.view));
  }
}

// The contents of checkpoint.json without its own checksum.
JsonObject info_json(const CheckpointInfo& info, int64_t state_bytes, uint32_t state_crc32c,
                     const std::vector<FileState>& files) {
  JsonObject masters;
  for (const FileState& file : files) {
    masters.add(file.state.name, JsonObject().add("file", file.name).add("crc32c", file.crc32c));
  }
  JsonObject object;
  object.add("format", kFormat).add("step", info.step).add("version", info.version);
  object.add("isa", info.isa).add("product", info.product).add("data", info.data);
  if (!info.model.empty()) object.add("model", info.model);
  if (!info.watch.empty()) object.add_json("watch", info.watch);
  object.add("state_bytes", state_bytes).add("state_crc32c", state_crc32c);
  return object.add("masters", masters);
}

// The size of checkpoint.json with the longest step, checksums, data and watch: the same for all
// checkpoints with such states.
int64_t info_bytes(CheckpointInfo info, int64_t state_bytes, std::vector<FileState> files) {
  constexpr uint32_t kLongest = std::numeric_limits<uint32_t>::max();
  info.step = kLongest;
  info.data.resize(std::max(info.data.size(), static_cast<size_t>(info.data_width)), '9');
  info.watch.resize(std::max(info.watch.size(), static_cast<size_t>(info.watch_width)), '9');
  for (FileState& file : files) file.crc32c = kLongest;
  JsonObject object = info_json(info, state_bytes, kLongest, files);
  return std::ssize(object.add(kChecksumMember, kLongest).text()) + 1;  // with its newline
}

struct SavedMaster {
  std::string file;  // in masters/
  int64_t crc32c;
};

// The contents of a checkpoint.json that was read.
struct Manifest {
  CheckpointInfo info;
  int64_t state_bytes = 0;
  int64_t state_crc32c = 0;
  std::map<std::string, SavedMaster> masters;  // by name of the state
};

constexpr int64_t kMostCrc = std::numeric_limits<uint32_t>::max();

// A number of checkpoint.json, refused if it is out of range.
int64_t bounded_integer(const fs::path& checkpoint, const JsonFields& fields, const char* key,
                        int64_t least, int64_t most) {
  const int64_t value = fields.integer(key);
  if (value < least || value > most) {
    damaged(checkpoint, fmt::format("{}: {} is {}, which is out of range", kInfo, key, value));
  }
  return value;
}

std::map<std::string, SavedMaster> read_masters(const fs::path& checkpoint,
                                                const JsonFields& fields) {
  std::map<std::string, SavedMaster> masters;
  const nlohmann::json* object = fields.find("masters");
  if (object == nullptr) return masters;
  if (!object->is_object()) {
    damaged(checkpoint, fmt::format("{}: masters is not an object", kInfo));
  }
  for (const auto& [name, saved] : object->items()) {
    const JsonFields entry(saved, (checkpoint / kInfo).string());
    const std::string file = entry.text("file");
    if (file.empty() || fs::path(file).filename() != file) {
      damaged(checkpoint, "a master's name is not a file name");
    }
    const int64_t crc = bounded_integer(checkpoint, entry, "crc32c", 0, kMostCrc);
    masters.emplace(name, SavedMaster{file, crc});
  }
  return masters;
}

void check_state_size(const fs::path& checkpoint, int64_t expected) {
  std::error_code error;
  const auto size = static_cast<int64_t>(fs::file_size(checkpoint / kState, error));
  if (error == std::errc::no_such_file_or_directory || error == std::errc::is_a_directory) {
    damaged(checkpoint, fmt::format("{} is missing", kState));
  }
  if (error) {
    throw Unreadable(
        ErrorKind::model,
        fmt::format("cannot look at {}: {}", (checkpoint / kState).string(), error.message()),
        kSeeThatItCanBeRead);
  }
  if (size != expected) {
    damaged(checkpoint,
            fmt::format("{} is corrupt: it has {} bytes of {}", kState, size, expected));
  }
}

// Checks every value before any is used.
Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kInfo;
  std::error_code unreachable;  // reading says so, too
  if (!fs::exists(path, unreachable) && !unreachable) {
    const std::vector<fs::path> newest = list_checkpoints(checkpoint);
    throw Error(ErrorKind::model,
                fmt::format("{} is not a checkpoint: it has no {}", checkpoint.string(), kInfo),
                newest.empty() ? fmt::format("give a directory {}<step> that holds {}",
                                             kDirectoryPrefix, kInfo)
                               : fmt::format("{} is the newest in it", newest.back().string()));
  }
  const std::string text = read_text(path);
  const nlohmann::json object = parse_json(text, path.string());
  const JsonFields fields(object, path.string());
  const int64_t format = fields.integer("format");
  const std::string other = fmt::format("checkpoint format {}, this program reads {} to {}", format,
                                        kOldestFormat, kFormat);
  if (format > kFormat) {
    const std::string version = fields.text("version", "");
    throw NewerCheckpoint(ErrorKind::model, fmt::format("{}: {}", checkpoint.string(), other),
                          fmt::format("a newer version{} has written it: continue with that one",
                                      version.empty() ? "" : fmt::format(" ({})", version)));
  }
  if (format < kOldestFormat) damaged(checkpoint, other);
  const bool has_checksum = format == kFormat || fields.has(kChecksumMember);
  if (has_checksum && fields.integer(kChecksumMember) != crc32c(without_checksum(text))) {
    damaged(checkpoint, fmt::format("{} is corrupt: checksum mismatch", kInfo));
  }
  const auto integer = [&](const char* key, int64_t least, int64_t most) {
    return bounded_integer(checkpoint, fields, key, least, most);
  };
  Manifest manifest;
  manifest.info = {integer("step", 1, std::numeric_limits<uint32_t>::max()),
                   fields.text("version"),
                   fields.text("isa"),
                   fields.text("product"),
                   fields.text("data", ""),
                   0,
                   fields.text("model", "")};
  if (const nlohmann::json* watch = fields.find("watch")) {
    if (!watch->is_object()) damaged(checkpoint, fmt::format("{}: watch is not an object", kInfo));
    manifest.info.watch = dump_json(*watch, -1);
  }
  if (const auto named = step_of(checkpoint); named && *named != manifest.info.step) {
    damaged(checkpoint, fmt::format("{} is that of step {}", kInfo, manifest.info.step));
  }
  manifest.state_bytes = integer("state_bytes", 0, std::numeric_limits<int64_t>::max());
  manifest.state_crc32c = integer("state_crc32c", 0, kMostCrc);
  manifest.masters = read_masters(checkpoint, fields);
  check_state_size(checkpoint, manifest.state_bytes);
  return manifest;
}

// Reads the files of masters/ back into the states that lie in files of this run.
void restore_files(const fs::path& checkpoint, const std::map<std::string, SavedMaster>& masters,
                   const StateSource& states, Ops& ops) {
  std::map<std::string, std::pair<MappedFile, int64_t>> files;  // with their CRCs, by state
  for (const auto& [name, saved] : masters) {
    files.emplace(name, std::pair(MappedFile(checkpoint / kMasters / saved.file), saved.crc32c));
  }
  const auto find = [&](const StateRef& state) {
    const auto found = files.find(state.name);
    if (found == files.end() ||
        std::ssize(found->second.first.bytes()) != booked_bytes(state.view.bytes())) {
      damaged(checkpoint, fmt::format("the master of {} is missing, or of another shape or type: "
                                      "the recipe has changed",
                                      state.name));
    }
    return found->second.first.bytes().first(static_cast<size_t>(state.view.bytes()));
  };
  size_t expected = 0;
  states([&](const StateRef& state) {
    if (state.file.empty()) return;
    ++expected;
    const std::span<const uint8_t> bytes = find(state);
    const uint32_t crc = crc32c(bytes);
    check_map(bytes.data());
    if (static_cast<int64_t>(crc) != files.at(state.name).second) {
      damaged(checkpoint,
              fmt::format("the master of {} is corrupt: checksum mismatch", state.name));
    }
  });
  if (expected != files.size()) damaged(checkpoint, "it holds masters of other weights");
  states([&](const StateRef& state) {
    if (state.file.empty()) return;
    const auto bytes = find(state);
    read_state(ops, bytes, state);
    check_map(bytes.data());
  });
}

}  // namespace

fs::path checkpoint_path(const fs::path& output_dir, int64_t step) {
  return output_dir / (kDirectoryPrefix + std::to_string(step));
}

fs::path write_checkpoint(const fs::path& output_dir, const CheckpointInfo& info,
                          const std::string& recipe_yaml, const StateSource& states, Ops& ops) {
  fs::path path = checkpoint_path(output_dir, info.step);
  std::error_code missing;
  if (fs::exists(fs::symlink_status(path, missing)) && !is_own(path)) {
    throw Error(ErrorKind::generic,
                fmt::format("{} exists and is not a checkpoint of a run", path.string()),
                "move it away");
  }
  AtomicDirectory directory(path, kUnfinished);
  std::vector<SafetensorsSpec> specs = saved_specs(states);
  const int64_t state_bytes = safetensors_bytes(specs);
  const fs::path state_path = directory.path() / kState;
  Crc32c crc;
  SafetensorsWriter writer(state_path, std::move(specs), &crc);
  states([&](const StateRef& state) {
    if (state.save) {
      write_state(ops, state,
                  [&](std::span<const uint8_t> bytes) { writer.write(state.name, bytes); });
    }
  });
  writer.close();
  write_text_atomic(directory.path() / kRecipeName, recipe_yaml);
  std::vector<FileState> files = states_in_files(states);
  link_files(directory.path(), files);
  std::string text = with_checksum(info_json(info, state_bytes, crc.value(), files));
  text.resize(static_cast<size_t>(info_bytes(info, state_bytes, files)) - 1, ' ');
  write_text_atomic(directory.path() / kInfo, text + "\n");
  directory.commit();
  return path;
}

FileSizes checkpoint_sizes(const CheckpointInfo& info, const std::string& recipe_yaml,
                           const StateSource& states) {
  const int64_t state_bytes = safetensors_bytes(saved_specs(states));
  const std::vector<FileState> files = states_in_files(states);
  FileSizes sizes;
  sizes.add(state_bytes);
  sizes.add(info_bytes(info, state_bytes, files));
  sizes.add(std::ssize(recipe_yaml));
  for (const FileState& file : files) sizes.add(booked_bytes(file.state.view.bytes()));
  return sizes;
}

std::vector<fs::path> list_checkpoints(const fs::path& output_dir) {
  std::vector<std::pair<int64_t, fs::path>> found;
  for (const fs::directory_entry& entry : entries_if_directory(output_dir)) {
    const auto step = step_of(entry.path());
    if (step && is_own(entry.path())) found.emplace_back(*step, entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  paths.reserve(found.size());
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

bool has_result_to_move(const fs::path& output_dir) {
  return is_there(output_dir / kWholeResult) || is_there(output_dir / kMovingResult);
}

bool is_checkpoint(const fs::path& path) {
  return is_there(path / kInfo);
}

std::string hint_without_result(const fs::path& directory) {
  if (has_result_to_move(directory)) {
    return "a run was stopped while it moved its result there: run the same command again, which "
           "moves the rest";
  }
  if (is_checkpoint(directory) || !list_checkpoints(directory).empty()) {
    const fs::path run = (directory / "..").lexically_normal();
    const bool has_result = is_checkpoint(directory) &&
                            (is_there(run / kAdapterConfig) || is_there(run / "config.json"));
    return (has_result ? fmt::format("the result of its run is in {}", run.string())
                       : "the result is written when the run ends") +
           "; to write that of a checkpoint, train with the same recipe, resume=CHECKPOINT, its "
           "step as max_steps, warmup_steps=0, and another output_dir";
  }
  if (!is_there(directory / kLogName)) return {};
  return "it has the log of a run, which writes its result when it ends";
}

CheckpointInfo read_checkpoint_info(const fs::path& checkpoint) {
  return read_manifest(checkpoint).info;
}

void restore_checkpoint(const fs::path& checkpoint, const StateSource& states,
                        const std::function<void()>& learner_restored, Ops& ops) {
  const Manifest manifest = read_manifest(checkpoint);
  {
    const MappedFile raw(checkpoint / kState);
    const uint32_t crc = read_whole(raw, [&] { return crc32c(raw.bytes()); });
    if (static_cast<int64_t>(crc) != manifest.state_crc32c) {
      damaged(checkpoint, fmt::format("{} is corrupt: checksum mismatch", kState));
    }
  }
  const SafetensorsFile file(checkpoint / kState);
  const auto check = [&](const StateRef& state) {
    const SafetensorsEntry* entry = file.find(state.name);
    const SafetensorsSpec spec = tensor_spec(state.name, state.view);
    if (entry == nullptr) {
      damaged(checkpoint, fmt::format("{} is missing: the recipe has changed", state.name));
    }
    if (state.role == StateRole::unread) return;
    if (entry->dtype != spec.dtype || entry->shape != spec.shape) {
      damaged(checkpoint,
              fmt::format("{} is {} {} there and {} {} here: the recipe or the model has changed",
                          state.name, entry->dtype, shape_text(entry->shape), spec.dtype,
                          shape_text(spec.shape)));
    }
  };
  const auto read = [&](const StateRef& state) {
    const SafetensorsEntry* entry = file.find(state.name);
    read_state(ops, entry->bytes, state);
    file.release(entry->bytes);
  };
  states([&](const StateRef& state) {
    if (state.role != StateRole::learner) return;
    check(state);
    read(state);
  });
  try {
    learner_restored();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::model) throw;
    damaged(checkpoint, error.what());  // a learner knows its state, not whose it is
  }
  size_t expected = 0;
  states([&](const StateRef& state) {
    if (!state.save) return;
    ++expected;
    check(state);
  });
  if (expected != file.entries().size()) {
    damaged(checkpoint, "it holds states that this recipe does not have");
  }
  restore_files(checkpoint, manifest.masters, states, ops);
  states([&](const StateRef& state) {
    const bool is_read = state.role == StateRole::learner || state.role == StateRole::unread;
    if (state.save && !is_read) read(state);
  });
}

void remove_checkpoints_after(const fs::path& output_dir, int64_t step, const fs::path& spared) {
  std::vector<fs::path> paths = list_checkpoints(output_dir);
  std::ranges::reverse(paths);
  for (const fs::path& path : paths) {
    if (step_of(path).value_or(0) > step && path != spared) remove_checkpoint(path);
  }
}

std::vector<fs::path> unfinished_checkpoints(const fs::path& output_dir) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : entries_of(output_dir, ignored)) {
    fs::path name = entry.path().filename();
    if (name.extension() == kReplacedSuffix) name = name.stem();  // moved away by AtomicDirectory
    const bool is_unfinished = name.extension() == kUnfinished && step_of(name.stem());
    if (is_unfinished) found.push_back(entry.path());
  }
  return found;
}

void remove_unfinished_checkpoints(const fs::path& output_dir) {
  std::error_code ignored;
  for (const fs::path& path : unfinished_checkpoints(output_dir)) fs::remove_all(path, ignored);
}

void prune_checkpoints(const fs::path& output_dir, int64_t keep, const fs::path& spared) {
  remove_unfinished_checkpoints(output_dir);
  const std::vector<fs::path> paths = list_checkpoints(output_dir);
  if (keep <= 0) return;
  const auto excess = static_cast<int64_t>(paths.size()) - keep;
  for (int64_t i = 0; i < excess; ++i) {
    const fs::path& path = paths[static_cast<size_t>(i)];
    if (path != spared) remove_checkpoint(path);
  }
}

}  // namespace jackscrew
