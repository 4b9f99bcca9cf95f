// Libraries that are looked for among the wheels of Python environments.
#include "kernels/cuda/shared_library.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/errors.h"

namespace jackscrew {
namespace {

class CudaSharedLibrary : public ::testing::Test {
 protected:
  CudaSharedLibrary()
      : root_(fs::temp_directory_path() / ("jackscrew_libraries_" + std::to_string(::getpid()))) {}
  ~CudaSharedLibrary() override { fs::remove_all(root_); }

  fs::path environment(const std::string& name) const { return root_ / name; }
  // An empty file of the wheel of an environment.
  fs::path empty_library(const std::string& name, const std::string& file) const {
    const fs::path directory =
        environment(name) / "lib" / "python3.11" / "site-packages" / "nvidia" / "none" / "lib";
    fs::create_directories(directory);
    std::ofstream(directory / file).flush();
    return directory / file;
  }
  // What is said where none of them can be loaded.
  static std::string refusal(const std::vector<fs::path>& environments) {
    return message_of(error_of(ErrorKind::device, [&] {
      const cuda::SharedLibrary library({"Nothing", "libjackscrew_none.so", 13, "nvidia-none"},
                                        environments);
    }));
  }

 private:
  fs::path root_;
};

TEST_F(CudaSharedLibrary, NamesWhatIsThereInstead) {
  const std::string wanted = "Nothing 13 is wanted (libjackscrew_none.so.13), ";
  EXPECT_EQ(refusal({environment("a")}), wanted + "none is found");
  const fs::path other = empty_library("a", "libjackscrew_none.so.12");
  EXPECT_EQ(refusal({environment("a")}), wanted + "found is only " + other.string());
}

TEST_F(CudaSharedLibrary, SaysWhyItCannotBeLoaded) {
  empty_library("a", "libjackscrew_none.so.12");
  const fs::path broken = empty_library("a", "libjackscrew_none.so.13");
  const std::string said = refusal({environment("a")});
  EXPECT_NE(said.find(broken.string() + " cannot be loaded: "), std::string::npos) << said;
  EXPECT_NE(said.find("file too short"), std::string::npos) << said;
  EXPECT_EQ(said.find("found is only"), std::string::npos) << said;
}

// The first of them is VIRTUAL_ENV, which goes before CONDA_PREFIX whatever their names.
TEST_F(CudaSharedLibrary, LooksInEnvironmentsInTheirOrder) {
  const fs::path in_a = empty_library("a", "libjackscrew_none.so.13");
  const fs::path in_b = empty_library("b", "libjackscrew_none.so.13");
  const auto expect_first = [](const fs::path& path, const std::string& said) {
    EXPECT_NE(said.find(path.string() + " cannot be loaded"), std::string::npos) << said;
  };
  expect_first(in_a, refusal({environment("a"), environment("b")}));
  expect_first(in_b, refusal({environment("b"), environment("a")}));
}

}  // namespace
}  // namespace jackscrew
