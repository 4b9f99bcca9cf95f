// Row kernels in a build without CUDA.
#pragma once

#define JACKSCREW_DECLARE_CUDA_ROWS(Args)
#define JACKSCREW_CUDA_ROWS(Args) nullptr
#define JACKSCREW_CUDA_BATCH(Args) nullptr
