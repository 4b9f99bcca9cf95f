#include <gtest/gtest.h>
#include "text/tokenizer_json.h"
