"""The TensorFlow operations that an imported model may use, and which of them can never be part of a dense graph.

A graph is a program: some operations read and write files, open sockets or run Python. So these lists say what is
allowed, not what is forbidden, and they are asked twice: before a SavedModel is opened, and again before a package's
stage is loaded by a server.
"""

from __future__ import annotations

from collections.abc import Iterable

from processor.errors import BadInput


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Work on numbers of fixed shape: what backends compile.
DENSE = words(
    """
    Abs Acos Acosh Add AddN AddV2 All Any ArgMax ArgMin Asin Asinh Atan Atan2 Atanh AvgPool AvgPool3D BatchMatMul
    BatchMatMulV2 BatchMatMulV3 BiasAdd BiasAddV1 BroadcastArgs BroadcastTo Cast Ceil ClipByValue Concat ConcatOffset
    ConcatV2 Const Conv2D Conv2DBackpropInput Conv3D Cos Cosh Cumprod Cumsum DepthToSpace DepthwiseConv2dNative Diag
    DiagPart Div DivNoNan Einsum Elu EnsureShape Equal Erf Erfc EuclideanNorm Exp ExpandDims Expm1 Fill Floor FloorDiv
    FloorMod FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 GatherNd GatherV2 Gather Greater GreaterEqual Identity
    IdentityN Inv IsFinite IsInf IsNan L2Loss LRN LeakyRelu Less LessEqual LinSpace Log Log1p LogSoftmax LogicalAnd
    LogicalNot LogicalOr MatMul MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2
    MatrixDiagV3 MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 Max MaxPool MaxPool3D MaxPoolV2 Maximum Mean Min Minimum
    MirrorPad Mod Mul MulNoNan Neg NotEqual OneHot OnesLike Pack Pad PadV2 Placeholder PlaceholderWithDefault Pow
    PreventGradient Prod Range Rank RealDiv Reciprocal Relu Relu6 Reshape ResizeBilinear ResizeNearestNeighbor
    ReverseSequence ReverseV2 Rint Roll Round Rsqrt ScatterNd Select SelectV2 Selu Shape ShapeN Sigmoid Sign Sin Sinh
    Size Slice Snapshot Softmax Softplus Softsign SpaceToDepth Split SplitV Sqrt Square SquaredDifference Squeeze
    StopGradient StridedSlice Sub Sum Tan Tanh TensorScatterAdd TensorScatterUpdate Tile TopK TopKV2 Transpose
    TruncateDiv TruncateMod Unpack Xdivy Xlog1py Xlogy ZerosLike
    """
)

# Strings, ids, tables, sparse and ragged rows, control flow: what runs on a CPU before the dense graph.
SPARSE = words(
    """
    AsString Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor Bucketize Case DecodeBase64 DenseBincount
    DenseCountSparseOutput DenseToDenseSetOperation DenseToSparseSetOperation DynamicPartition DynamicStitch
    EditDistance EmptyTensorList EncodeBase64 Fingerprint HashTable HashTableV2 If InTopK InTopKV2 Invert
    InvertPermutation LeftShift ListDiff LookupTableFind LookupTableFindV2 LookupTableSize LookupTableSizeV2 LowerBound
    MutableHashTable MutableHashTableV2 NoOp ParallelDynamicStitch
    ParseExample ParseExampleV2 ParseSequenceExample ParseSequenceExampleV2 ParseSingleExample PartitionedCall
    PopulationCount RaggedBincount RaggedCountSparseOutput RaggedFillEmptyRows RaggedGather RaggedRange
    RaggedTensorFromVariant RaggedTensorToSparse RaggedTensorToTensor RaggedTensorToVariant ReadVariableOp ReduceJoin
    RegexFullMatch RegexReplace ResourceGather ResourceGatherNd RightShift SegmentMax SegmentMean SegmentMin
    SegmentProd SegmentSum SparseAdd SparseBincount SparseConcat SparseCountSparseOutput SparseCross SparseCrossHashed
    SparseCrossV2 SparseDenseCwiseAdd SparseDenseCwiseDiv SparseDenseCwiseMul SparseFillEmptyRows SparseMatMul
    SparseReduceMax SparseReduceMaxSparse SparseReduceSum SparseReduceSumSparse SparseReorder SparseReshape
    SparseSegmentMean SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNWithNumSegments
    SparseSegmentSum SparseSegmentSumWithNumSegments SparseSlice SparseSoftmax SparseSparseMaximum SparseSparseMinimum
    SparseSplit SparseTensorDenseAdd SparseTensorDenseMatMul SparseToDense SparseToSparseSetOperation
    StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile StaticRegexFullMatch StaticRegexReplace
    StringFormat StringJoin StringLength StringLower StringNGrams StringSplit StringSplitV2 StringStrip
    StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper Substr
    TensorListConcatV2 TensorListElementShape TensorListFromTensor TensorListGather TensorListGetItem TensorListLength
    TensorListPopBack TensorListPushBack TensorListReserve TensorListResize TensorListScatterIntoExistingList
    TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack UnicodeDecode UnicodeDecodeWithOffsets
    UnicodeEncode UnicodeScript UnicodeTranscode Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 UnravelIndex
    UnsortedSegmentJoin UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound
    VarHandleOp Variable VariableV2 Where While
    """
)

# They check, and change nothing: left out of what is imported.
CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})

# What opening a model needs besides: its variables restored, its tables filled.
OPENING = words(
    """
    Assign AssignVariableOp InitializeTable InitializeTableFromTextFile InitializeTableFromTextFileV2 InitializeTableV2
    LookupTableExport LookupTableExportV2 LookupTableImport LookupTableImportV2 RestoreV2 VarIsInitializedOp
    """
)

GRAPH = DENSE | SPARSE | CHECKS
STAGE = DENSE | SPARSE | {"AssignVariableOp", "LookupTableImportV2"}


def check_ops(used: Iterable[str], allowed: frozenset[str], where: str) -> None:
    """Raises BadInput naming the first operation that is not allowed."""
    for op in sorted(set(used) - allowed):
        raise BadInput(f"{where}: operation {op[:64]} is not allowed in an imported model")
