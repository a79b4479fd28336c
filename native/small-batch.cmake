# The small-batch kernels as sources of a target: one file per instruction set, each with its own flags; the CPU is asked
# at run time. Other compilers and processors get the portable files alone and run upstream's kernels.
function(small_batch_add_kernels target)
    set(src ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/src)
    target_include_directories(${target} PRIVATE ${src})
    target_sources(${target} PRIVATE ${src}/small-batch-layout.cpp)
    if(MSVC OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
        return()
    endif()

    # no contraction: every variant of a kernel must round in the same places
    set(avx2 -mavx2 -mfma -mf16c -ffp-contract=off)
    target_sources(${target} PRIVATE ${src}/small-batch-avx2.cpp)
    target_compile_definitions(${target} PRIVATE SMALL_BATCH_X86)
    set_source_files_properties(${src}/small-batch-avx2.cpp TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS "${avx2}")

    include(CheckCXXCompilerFlag)
    check_cxx_compiler_flag("-mavxvnni -mavx512vnni -mavx512vl" SMALL_BATCH_COMPILER_HAS_VNNI)
    if(SMALL_BATCH_COMPILER_HAS_VNNI)
        target_sources(${target} PRIVATE ${src}/small-batch-avx-vnni.cpp ${src}/small-batch-avx512-vnni.cpp)
        target_compile_definitions(${target} PRIVATE SMALL_BATCH_X86_VNNI)
        set_source_files_properties(${src}/small-batch-avx-vnni.cpp TARGET_DIRECTORY ${target}
            PROPERTIES COMPILE_OPTIONS "${avx2};-mavxvnni")
        set_source_files_properties(${src}/small-batch-avx512-vnni.cpp TARGET_DIRECTORY ${target}
            PROPERTIES COMPILE_OPTIONS "${avx2};-mavx512f;-mavx512bw;-mavx512vl;-mavx512vnni")
    endif()
endfunction()
