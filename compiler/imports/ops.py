"""List the TensorFlow operations that an imported model may use, and those that can be part of a dense graph.

A graph is a program: some operations read and write files, open sockets or run Python. So these are lists of what is
allowed, not of what is forbidden, and they are checked twice: before a SavedModel is opened, and again before a server
loads a package's stage.
"""

from __future__ import annotations

from collections.abc import Iterable

from freshet_serving.compiler.passes.decompose import RULES
from freshet_serving.processor.errors import BadInput


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Work on numbers of fixed shape: backends compile these, as they are or decomposed.
DENSE = (
    words(
        """
        Abs Acos Acosh Add AddN AddV2 All Any ArgMax ArgMin Asin Asinh Atan Atan2 Atanh AvgPool AvgPool3D
        BatchMatMul BatchMatMulV2 BatchMatMulV3 BiasAdd BiasAddV1 BroadcastArgs BroadcastTo Cast Ceil ClipByValue
        Concat ConcatOffset ConcatV2 Const Conv2D Conv2DBackpropInput Conv3D Cos Cosh Cumsum DepthToSpace
        DepthwiseConv2dNative Diag DiagPart Div DivNoNan Einsum Elu EnsureShape Equal Erf Exp ExpandDims Fill Floor
        FloorDiv FloorMod FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 Gather GatherNd GatherV2 Greater
        GreaterEqual Identity IdentityN Inv InvertPermutation IsFinite IsInf IsNan L2Loss LRN LeakyRelu Less
        LessEqual LinSpace Log LogSoftmax LogicalAnd LogicalNot LogicalOr MatMul MatrixBandPart MatrixDeterminant
        MatrixDiag MatrixDiagPart MatrixSetDiag Max MaxPool MaxPool3D MaxPoolV2 Maximum Mean Min Minimum MirrorPad
        Mod Mul Neg NotEqual OneHot OnesLike Pack Pad PadV2 Placeholder PlaceholderWithDefault Pow PreventGradient
        Prod Range Rank RealDiv Reciprocal Relu Relu6 Reshape ResizeBilinear ResizeNearestNeighbor ReverseSequence
        ReverseV2 Rint Roll Round Rsqrt ScatterNd Select SelectV2 Selu Shape ShapeN Sigmoid Sign Sin Sinh Size Slice
        Snapshot Softmax Softplus Softsign SpaceToDepth Split SplitV Sqrt Square SquaredDifference Squeeze
        StopGradient StridedSlice Sub Sum Tan Tanh TensorScatterAdd TensorScatterUpdate Tile TopK TopKV2 Transpose
        TruncateDiv Unpack ZerosLike
        """
    )
    | RULES.keys()
)

# Strings, ids, tables, sparse and ragged rows, control flow, functions that no backend has: these run on a CPU before
# the dense graph.
SPARSE = words(
    """
    Angle ApproximateEqual AsString BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e
    BesselK1 BesselK1e BesselY0 BesselY1 Betainc Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor Case Cholesky
    Complex ComplexAbs Conj Dawsn DecodeBase64 DenseCountSparseOutput DenseToDenseSetOperation
    DenseToSparseSetOperation DynamicPartition DynamicStitch EditDistance EmptyTensorList EncodeBase64 Expint
    ExtractImagePatches FFT FFT2D Fingerprint FresnelCos FresnelSin HashTable HashTableV2 HistogramFixedWidth IFFT
    IRFFT If Igamma Igammac Imag InTopK InTopKV2 Invert LeftShift ListDiff LogMatrixDeterminant LookupTableFind
    LookupTableFindV2 LookupTableSize LookupTableSizeV2 LowerBound Lu MatrixExponential MatrixInverse
    MatrixLogarithm MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve MutableHashTable
    MutableHashTableV2 NextAfter NoOp ParallelDynamicStitch ParseExample ParseExampleV2 ParseSequenceExample
    ParseSequenceExampleV2 ParseSingleExample PartitionedCall Polygamma PopulationCount Qr RFFT RaggedBincount
    RaggedCountSparseOutput RaggedFillEmptyRows RaggedGather RaggedRange RaggedTensorFromVariant
    RaggedTensorToSparse RaggedTensorToTensor RaggedTensorToVariant ReadVariableOp Real ReduceJoin RegexFullMatch
    RegexReplace ResourceGather ResourceGatherNd RightShift SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum
    SelfAdjointEigV2 SparseAdd SparseBincount SparseConcat SparseCountSparseOutput SparseCross SparseCrossHashed
    SparseCrossV2 SparseDenseCwiseAdd SparseDenseCwiseDiv SparseDenseCwiseMul SparseFillEmptyRows SparseMatMul
    SparseReduceMax SparseReduceMaxSparse SparseReduceSum SparseReduceSumSparse SparseReorder SparseReshape
    SparseSegmentMean SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNWithNumSegments
    SparseSegmentSum SparseSegmentSumWithNumSegments SparseSlice SparseSoftmax SparseSparseMaximum
    SparseSparseMinimum SparseSplit SparseTensorDenseAdd SparseTensorDenseMatMul SparseToDense
    SparseToSparseSetOperation Spence StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile
    StaticRegexFullMatch StaticRegexReplace StringFormat StringJoin StringLength StringLower StringNGrams
    StringSplit StringSplitV2 StringStrip StringToHashBucket StringToHashBucketFast StringToHashBucketStrong
    StringToNumber StringUpper Substr Svd TensorListConcatV2 TensorListElementShape TensorListFromTensor
    TensorListGather TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack TensorListReserve
    TensorListResize TensorListScatterIntoExistingList TensorListScatterV2 TensorListSetItem TensorListSplit
    TensorListStack UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode UnicodeScript UnicodeTranscode Unique
    UniqueV2 UniqueWithCounts UniqueWithCountsV2 UnravelIndex UnsortedSegmentJoin UnsortedSegmentMax
    UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound VarHandleOp Variable VariableV2 Where While
    Zeta
    """
)

# These only check values: they are left out of the import, except inside branches and loops.
CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})

# Needed only to open a model: restoring its variables, filling its tables.
OPENING = words(
    """
    Assign AssignVariableOp InitializeTable InitializeTableFromTextFile InitializeTableFromTextFileV2 InitializeTableV2
    LookupTableExport LookupTableExportV2 LookupTableImport LookupTableImportV2 RestoreV2 VarIsInitializedOp
    """
)

# Those of OPENING that read files; the files are checked separately.
READING = frozenset({"InitializeTableFromTextFile", "InitializeTableFromTextFileV2", "RestoreV2"})

GRAPH = DENSE | SPARSE | CHECKS
STAGE = DENSE | SPARSE | CHECKS | {"AssignVariableOp", "LookupTableImportV2"}


def check_ops(used: Iterable[str], allowed: frozenset[str], where: str) -> None:
    for op in sorted(set(used) - allowed):
        raise BadInput(f"{where}: operation {op[:64]} is not allowed in an imported model")
