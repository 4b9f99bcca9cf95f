// Commands that people try and that the program does not have.
#pragma once

#include <string_view>

namespace jackscrew {

struct NotYet {
  const char* name;  // names, separated by spaces
  const char* what;  // is not there, as a sentence
  const char* hint;  // what to do instead
};

// nullptr where nothing is known of that name.
const NotYet* not_yet(std::string_view command);

}  // namespace jackscrew
